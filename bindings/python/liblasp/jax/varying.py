"""Over which axes of a mesh arrays vary inside jax.shard_map: what its check_vma looks at. JAX has changed the names of
these things several times; only this file knows them."""
from __future__ import annotations

from typing import Any, FrozenSet, Iterable, List, Optional, Sequence, Tuple

import jax


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


def names_of(axis_name: Any) -> Tuple[Any, ...]:
    """An axis, or several that are one, as a tuple."""
    return tuple(axis_name) if isinstance(axis_name, (tuple, list)) else (axis_name,)


def size_and_rank(axis_name: Any) -> Tuple[int, Optional[jax.Array]]:
    return jax.lax.psum(1, axis_name), jax.lax.axis_index(axis_name)
