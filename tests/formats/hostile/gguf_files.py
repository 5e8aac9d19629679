"""Makers of damaged and hostile GGUF files, one for each check of the reader.

Each maker returns the bytes of one file.
"""

from __future__ import annotations

import struct

from hostile.makers import Maker, registering
from hostile.raw import ARRAY, BOOL, STRING, U8, U32, array, gguf, key, string, tensor

GOOD_TENSOR = tensor("a.weight")
HUGE = 1 << 40


MAKERS: list[Maker] = []
maker = registering(MAKERS)


@maker("the file is empty")
def empty() -> bytes:
    return b""


@maker("Git LFS pointer of 135 bytes, not the model")
def lfs_pointer() -> bytes:
    oid = "0123456789abcdef" * 4
    text = f"version https://git-lfs.github.com/spec/v1\noid sha256:{oid}\nsize 1234567890\n"
    return text.encode()


@maker(r"begins with b'GGUX', a GGUF file begins with b'GGUF'")
def wrong_magic() -> bytes:
    return gguf(magic=b"GGUX")


@maker("cut within the magic: 4 bytes are needed, 3 are left")
def three_bytes() -> bytes:
    return b"GGU"


@maker("cut within the number of keys")
def header_only_half() -> bytes:
    return gguf()[:20]


@maker("big-endian")
def big_endian() -> bytes:
    return gguf(version=struct.pack(">I", 3))


@maker("big-endian")
def big_endian_magic() -> bytes:
    return gguf(magic=b"FUGG", version=struct.pack(">I", 3))


@maker("GGUF version 1, versions 2 and 3 are served")
def version_1() -> bytes:
    return gguf(version=struct.pack("<I", 1))


@maker("GGUF version 99")
def version_99() -> bytes:
    return gguf(version=struct.pack("<I", 99))


@maker(f"claims {HUGE} keys, at most 65536")
def huge_key_count() -> bytes:
    return gguf(num_keys=HUGE)


@maker("claims 60000 keys, which can't fit")
def key_count_past_the_end() -> bytes:
    return gguf(num_keys=60000)


@maker("key 1 has an empty name")
def one_key_too_many() -> bytes:
    return gguf(num_keys=2)


@maker("tensor 0 has an empty name")
def one_tensor_too_many() -> bytes:
    return gguf(num_tensors=1)


@maker(f"claims {HUGE} tensors, at most 131072")
def huge_tensor_count() -> bytes:
    return gguf(num_tensors=HUGE)


@maker("claims 100000 tensors, which can't fit")
def tensor_count_past_the_end() -> bytes:
    return gguf(num_tensors=100000)


@maker(f"the name of key 1 claims {HUGE} bytes, only")
def key_length_past_the_end() -> bytes:
    return gguf([string("k", HUGE)])


@maker("the name of key 1 has 70000 bytes, at most 65535")
def long_key() -> bytes:
    return gguf([key("k" * 70000, U8, b"\1")])


@maker("the name of key 1 is not valid UTF-8")
def key_not_utf8() -> bytes:
    return gguf([key(b"\xff\xfe", U8, b"\1")])


@maker("key a.b occurs twice")
def duplicate_key() -> bytes:
    return gguf([key("a.b", U8, b"\1"), key("a.b", U8, b"\2")])


@maker(f"key s claims {HUGE} bytes, only")
def string_length_past_the_end() -> bytes:
    return gguf([key("s", STRING, string("x", HUGE))])


@maker(f"key s claims {(1 << 64) - 1} bytes, only")
def string_length_that_wraps() -> bytes:
    return gguf([key("s", STRING, string("x", (1 << 64) - 1))])


@maker("key k has value type 13, types are 0 to 12")
def unknown_value_type() -> bytes:
    return gguf([key("k", 13, b"\1")])


@maker("key k has value type 99, types are 0 to 12")
def unknown_element_type() -> bytes:
    return gguf([key("k", ARRAY, array(99, 1, b"\1"))])


@maker("key k has 2 as its truth value, must be 0 or 1")
def odd_truth_value() -> bytes:
    return gguf([key("k", BOOL, b"\2")])


@maker("key k has truth values other than 0 and 1")
def odd_truth_values() -> bytes:
    return gguf([key("k", ARRAY, array(BOOL, 2, b"\1\3"))])


@maker(f"key k claims {HUGE} values, only")
def array_length_past_the_end() -> bytes:
    return gguf([key("k", ARRAY, array(U32, HUGE))])


@maker(f"key k claims {1 << 62} values, only")
def array_length_that_wraps() -> bytes:
    return gguf([key("k", ARRAY, array(U32, 1 << 62))])


@maker(f"key k: {HUGE} strings can't fit")
def string_array_length_past_the_end() -> bytes:
    return gguf([key("k", ARRAY, array(STRING, HUGE))])


@maker(f"key k: string 1 has a length of {HUGE} bytes")
def string_in_array_past_the_end() -> bytes:
    return gguf([key("k", ARRAY, array(STRING, 2, string("a") + string("b", HUGE)))])


@maker("key k is an array of arrays")
def nested_array() -> bytes:
    return gguf([key("k", ARRAY, array(ARRAY, 1, array(U8, 1, b"\1")))])


@maker("key k is an array of arrays")
def deeply_nested_array() -> bytes:
    return gguf([key("k", ARRAY, array(ARRAY, 1) * 100_000)])


def alignment(value: int) -> bytes:
    return gguf([key("general.alignment", U32, struct.pack("<I", value))], [GOOD_TENSOR])


@maker("general.alignment is 0, must be a power of two")
def alignment_0() -> bytes:
    return alignment(0)


@maker("general.alignment is 3, must be a power of two")
def alignment_3() -> bytes:
    return alignment(3)


@maker(f"general.alignment is {1 << 30}, must be a power of two from 8 to 65536")
def alignment_huge() -> bytes:
    return alignment(1 << 30)


@maker("general.alignment is '32', must be a power of two")
def alignment_text() -> bytes:
    return gguf([key("general.alignment", STRING, string("32"))], [GOOD_TENSOR])


@maker("the name of tensor 0 claims")
def tensor_name_past_the_end() -> bytes:
    return gguf(tensors=[string("a", HUGE) + bytes(24)])


@maker("the name of tensor 0 has 2000 bytes, at most 1024")
def long_tensor_name() -> bytes:
    return gguf(tensors=[tensor("a" * 2000)])


@maker("tensor a.weight occurs twice")
def duplicate_tensor() -> bytes:
    return gguf(tensors=[GOOD_TENSOR, tensor("a.weight", offset=32)])


@maker("tensor a has 5 dimensions, at most 4")
def five_dimensions() -> bytes:
    return gguf(tensors=[tensor("a", (1, 1, 1, 1, 1))])


@maker("tensor a has 9 dimensions, at most 4")
def nine_dimensions() -> bytes:
    return gguf(tensors=[tensor("a", (1,) * 9)])


@maker("tensor a has 4294967295 dimensions, at most 4")
def most_dimensions() -> bytes:
    return gguf(tensors=[tensor("a", num_dims=0xFFFFFFFF)])


@maker(r"tensor a has shape \[0, 4\], all must be above 0")
def empty_dimension() -> bytes:
    return gguf(tensors=[tensor("a", (4, 0))])


@maker("tensor a has type id 4242 .not a ggml type.")
def unknown_tensor_type() -> bytes:
    return gguf(tensors=[tensor("a", type_id=4242)])


@maker("tensor a has type id 31 .Q4_0_4_4, removed from ggml.")
def removed_tensor_type() -> bytes:
    return gguf(tensors=[tensor("a", type_id=31)])


@maker("t0 .*; tensor t4 .*; and 2 more tensors")
def many_unknown_tensor_types() -> bytes:
    return gguf(tensors=[tensor(f"t{i}", type_id=4242) for i in range(7)])


@maker("tensor a: a row of 4 values can't be Q4_K")
def row_of_half_a_block() -> bytes:
    return gguf(tensors=[tensor("a", type_id=12)])


@maker("tensor a has offset 4, must be a multiple of 32")
def unaligned_offset() -> bytes:
    return gguf(tensors=[tensor("a", offset=4)])


@maker("tensor a ends at byte .*, the file at")
def data_cut_by_one_byte() -> bytes:
    return gguf(tensors=[tensor("a", offset=32)])[:-1]


@maker("tensor a ends at byte .*, the file at")
def offset_past_the_end() -> bytes:
    return gguf(tensors=[tensor("a", offset=64)])


@maker("tensor a ends at byte .*, the file at")
def offset_that_wraps() -> bytes:
    return gguf(tensors=[tensor("a", offset=(1 << 64) - 32)])


@maker("tensor a ends at byte .*, the file at")
def shape_whose_product_wraps() -> bytes:
    return gguf(tensors=[tensor("a", (1 << 32, 1 << 32, 1 << 32, 4))])


@maker("tensors a and b overlap")
def overlapping_tensors() -> bytes:
    return gguf(tensors=[tensor("a", (4, 4)), tensor("b", offset=32)])


@maker("general.architecture is missing")
def no_architecture() -> bytes:
    whole = gguf()
    return whole.replace(b"general.architecture", b"general.architectura")


@maker(r"key \\x1b\[31m\\n occurs twice")
def key_that_writes_to_the_terminal() -> bytes:
    return gguf([key("\x1b[31m\n", U8, b"\1")] * 2)


@maker(r"key kkkkk.*k\.\.\.$")
def long_key_in_a_message() -> bytes:
    return gguf([key("k" * 60_000, U8, b"\1")] * 2)
