"""Over which axes of a mesh arrays vary inside jax.shard_map: what its check_vma looks at. JAX has changed the names of
these things several times; only this file knows them."""
from __future__ import annotations

from typing import Any, FrozenSet, Iterable, List, Sequence, Tuple

import jax

import liblasp
from liblasp.arguments import describe


def axes_of(array: Any) -> FrozenSet[Any]:
    aval = jax.typeof(array)
    kind = getattr(aval, "manual_axis_type", None)  # JAX 0.10 and later
    return frozenset(getattr(aval, "vma", ()) if kind is None else kind.varying)


def over(array: jax.Array, axes: FrozenSet[Any]) -> jax.Array:
    """The same numbers, held to vary over these axes too: its gradient is summed over those that are new."""
    missing = tuple(sorted(axes - axes_of(array), key=str))
    if not missing:
        return array
    if hasattr(jax.lax, "pcast"):
        return jax.lax.pcast(array, missing, to="varying")
    return jax.lax.pvary(array, missing)


def alike(arrays: Iterable[jax.Array]) -> Tuple[List[jax.Array], Any]:
    """The arrays, all varying over the axes that any of them varies over; and one that tells which."""
    arrays = list(arrays)
    axes: FrozenSet[Any] = frozenset().union(*(axes_of(array) for array in arrays))
    arrays = [over(array, axes) for array in arrays]
    return arrays, arrays[0]


def struct(shape: Sequence[int], dtype: Any, like: Any) -> jax.ShapeDtypeStruct:
    """A result that varies as `like` does."""
    axes = axes_of(like)
    if not axes:
        return jax.ShapeDtypeStruct(tuple(shape), dtype)
    kind = getattr(jax.typeof(like), "manual_axis_type", None)
    if kind is None:
        return jax.ShapeDtypeStruct(tuple(shape), dtype, vma=axes)
    here = jax.sharding.NamedSharding(jax.sharding.get_abstract_mesh(), jax.sharding.PartitionSpec())
    return jax.ShapeDtypeStruct(tuple(shape), dtype, sharding=here, manual_axis_type=kind)


def ranks_of(axis_name: Any) -> Tuple[Tuple[Any, ...], int]:
    """The axes of `axis_name`, one or several that are one, and how many shards they have. No axes where it is None."""
    axes = tuple(axis_name) if isinstance(axis_name, (tuple, list)) else () if axis_name is None else (axis_name,)
    if not all(isinstance(name, str) for name in axes) or (axis_name is not None and not axes):
        raise liblasp.InvalidArgument(f"axis_name = {describe(axis_name)}: must be a name of a mesh axis, or several")
    try:
        return axes, jax.lax.psum(1, axes) if axes else 1
    except NameError:
        raise liblasp.InvalidArgument(f"axis_name = {axis_name!r}: is no axis here; call inside jax.shard_map over a mesh "
                                      "that has it") from None
