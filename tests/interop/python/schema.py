# SPDX-License-Identifier: Apache-2.0
"""The wire contract of docs/protocol.md as msgspec types: what a consumer that trusts nothing would declare.

Every field that vLLM's consumers require is required here, and nothing that is not declared is accepted.
"""

from typing import Annotated, Any, Optional, Union

import msgspec

# msgspec bounds integers within 63 bits only; the wire bounds the other end.
UInt64 = Annotated[int, msgspec.Meta(ge=0)]
UInt32 = Annotated[int, msgspec.Meta(ge=0, le=2**32 - 1)]
Token = Annotated[int, msgspec.Meta(ge=0, le=2**31 - 1)]
Hash = Union[UInt64, Annotated[bytes, msgspec.Meta(min_length=1, max_length=32)]]
ExtraKeys = list[Optional[list[Any]]]


# Events as maps, the type under "type": vLLM since 0.24.
class MapEvent(msgspec.Struct, tag_field="type", tag=True, forbid_unknown_fields=True):
    pass


class MapBlockStored(MapEvent, tag="BlockStored"):
    block_hashes: list[Hash]
    parent_block_hash: Optional[Hash]
    token_ids: list[Token]
    block_size: UInt32
    lora_id: Optional[int]
    medium: Optional[str]
    lora_name: Optional[str]
    extra_keys: Optional[ExtraKeys] = None
    group_idx: Optional[UInt32] = None
    kv_cache_spec_kind: Optional[str] = None
    kv_cache_spec_sliding_window: Optional[UInt32] = None
    locality: Optional[str] = None
    ownership: Optional[str] = None
    session_id: Optional[str] = None


class MapBlockRemoved(MapEvent, tag="BlockRemoved"):
    block_hashes: list[Hash]
    medium: Optional[str]
    group_idx: Optional[UInt32] = None
    locality: Optional[str] = None
    ownership: Optional[str] = None


class MapAllBlocksCleared(MapEvent, tag="AllBlocksCleared"):
    pass


# Events as arrays, the type first, every field present: vLLM 0.22.
class ArrayEvent(msgspec.Struct, array_like=True, tag=True, forbid_unknown_fields=True):
    pass


class ArrayBlockStored(ArrayEvent, tag="BlockStored"):
    block_hashes: list[Hash]
    parent_block_hash: Optional[Hash]
    token_ids: list[Token]
    block_size: UInt32
    lora_id: Optional[int]
    medium: Optional[str]
    lora_name: Optional[str]
    extra_keys: Optional[ExtraKeys]
    group_idx: Optional[UInt32]
    kv_cache_spec_kind: Optional[str]
    kv_cache_spec_sliding_window: Optional[UInt32]


class ArrayBlockRemoved(ArrayEvent, tag="BlockRemoved"):
    block_hashes: list[Hash]
    medium: Optional[str]
    group_idx: Optional[UInt32]


class ArrayAllBlocksCleared(ArrayEvent, tag="AllBlocksCleared"):
    pass


# The batch is an array of exactly three; its rank is an integer on this publisher's wire.
class MapEventBatch(msgspec.Struct, array_like=True, forbid_unknown_fields=True):
    ts: float
    events: list[Union[MapBlockStored, MapBlockRemoved, MapAllBlocksCleared]]
    data_parallel_rank: int


class ArrayEventBatch(msgspec.Struct, array_like=True, forbid_unknown_fields=True):
    ts: float
    events: list[Union[ArrayBlockStored, ArrayBlockRemoved, ArrayAllBlocksCleared]]
    data_parallel_rank: int


DECODERS = {
    "map": msgspec.msgpack.Decoder(MapEventBatch),
    "array": msgspec.msgpack.Decoder(ArrayEventBatch),
}
