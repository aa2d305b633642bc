"""The delta rule under the names of its papers: linear_attention with beta."""
from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, NoReturn, Tuple, Union, overload

import torch
from torch.compiler import is_compiling

import liblasp

from .attention import linear_attention
from .problem import invalid_argument
from .sequence_group import sequence_group

if TYPE_CHECKING:
    from typing import Optional, Sequence

    from typing_extensions import TypedDict, Unpack

    from .ownership import OwnershipLike
    from .sequence_group import Group

    class _Options(TypedDict, total=False):
        initial_state: Optional[torch.Tensor]
        cu_seqlens: Union[None, torch.Tensor, Sequence[int]]
        scale: Optional[float]
        group: Group
        broadcast_final_state: bool
        total_tokens: Optional[int]
        state_cache: Optional[Literal["chunks", "incoming"]]
        ownership: Optional[OwnershipLike]

_Result = Union[torch.Tensor, Tuple[torch.Tensor, torch.Tensor]]


@overload
def delta_rule(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, beta: torch.Tensor, *,
               output_final_state: Literal[False] = False, **options: Unpack[_Options]) -> torch.Tensor: ...


@overload
def delta_rule(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, beta: torch.Tensor, *,
               output_final_state: Literal[True],
               **options: Unpack[_Options]) -> Tuple[torch.Tensor, torch.Tensor]: ...


def delta_rule(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, beta: torch.Tensor, **options: Any) -> _Result:
    """DeltaNet's attention (arXiv 2406.06484): a token replaces by v what the state holds for its key k,

        S_t = (I - beta_t k_t k_t^T) S_{t-1} + beta_t k_t v_t^T        o_t = scale S_t^T q_t

    beta [B, T, H], float32 or the dtype of q, any number; the papers have sigmoids. Keys are taken as they are: give
    them the length 1. q, k, v and the options are linear_attention's, and so are the errors. linear_attention_step
    with beta= decodes.
    """
    return _call(q, k, v, None, beta, options)


@overload
def gated_delta_rule(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, g: torch.Tensor, beta: torch.Tensor, *,
                     output_final_state: Literal[False] = False, **options: Unpack[_Options]) -> torch.Tensor: ...


@overload
def gated_delta_rule(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, g: torch.Tensor, beta: torch.Tensor, *,
                     output_final_state: Literal[True],
                     **options: Unpack[_Options]) -> Tuple[torch.Tensor, torch.Tensor]: ...


def gated_delta_rule(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, g: torch.Tensor, beta: torch.Tensor,
                     **options: Any) -> _Result:
    """Gated DeltaNet's attention (arXiv 2412.06464): delta_rule on a state that first decays by exp(g_t).

    g [B, T, H]: log-decays, at most 0, float32 or the dtype of q. q, k, v and beta as in delta_rule.
    """
    return _call(q, k, v, g, beta, options, dims="[B, T, H]")


@overload
def kda(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, g: torch.Tensor, beta: torch.Tensor, *,
        output_final_state: Literal[False] = False, **options: Unpack[_Options]) -> torch.Tensor: ...


@overload
def kda(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, g: torch.Tensor, beta: torch.Tensor, *,
        output_final_state: Literal[True], **options: Unpack[_Options]) -> Tuple[torch.Tensor, torch.Tensor]: ...


def kda(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, g: torch.Tensor, beta: torch.Tensor,
        **options: Any) -> _Result:
    """Kimi Delta Attention (arXiv 2510.26692): delta_rule on a state whose key channels first decay by exp(g_t).

    g [B, T, H, K]: log-decays, at most 0, float32 or the dtype of q. q, k, v and beta as in delta_rule.
    """
    return _call(q, k, v, g, beta, options, dims="[B, T, H, K]")


def _call(q, k, v, g, beta, options, dims="") -> Any:
    if beta is None:
        _refuse("beta: must be a tensor [B, T, H], not None", q, options)
    if dims and (not isinstance(g, torch.Tensor) or g.dim() != dims.count(",") + 1):
        found = f"has {g.dim()} dimensions" if isinstance(g, torch.Tensor) else f"is a {type(g).__name__}"
        _refuse(f"g: {found}, must be a tensor {dims}", q, options)
    if is_compiling():
        return linear_attention(q, k, v, g, beta=beta, **options)
    try:
        return linear_attention(q, k, v, g, beta=beta, **options)
    except liblasp.InvalidArgument as error:
        if not str(error).startswith("decay: "):
            raise
        raise invalid_argument("g" + str(error)[len("decay"):]) from None


def _refuse(sentence: str, q: Any, options: Any) -> NoReturn:
    if not is_compiling():
        sequence_group(options.get("group")).give_up(getattr(q, "device", None))
    raise invalid_argument(sentence)
