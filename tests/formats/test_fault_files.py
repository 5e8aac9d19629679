"""Reported faults of files, types and memory: each has files here, with the verdict they must get.

The verdicts are tested in test_wild.py (cases) and in test_hostile_gguf.py and test_safetensors.py
(makers); this module sees to it that no report is without one.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import wild.folder_cases
import wild.gguf_cases
import wild.gguf_file_cases  # noqa: F401
from hostile import gguf_files, safetensors_files
from wild.cases import CASES

ROOT = Path(__file__).parents[2]
NAMES = {case.name for case in CASES}
NAMES |= {maker.name for maker in (*gguf_files.MAKERS, *safetensors_files.MAKERS)}

# By the item's number; `*` stands for anything.
FILES = {
    1: "towers_inside ollama_blob hf_with_towers",
    2: "ollama_blob ollama_blob_without_merges",
    3: "head_count_kv_as_list head_count_kv_as_unsigned_list attention.head_count_kv_of_*",
    5: "promised_table_is_missing table_without_its_key dense_without_table",
    6: "plain shared_kv_present shared_k_norm_only hf_single_file hf_shared_kv_present",
    8: "not_a_text_model_mmproj not_a_text_model_mmproj_of_unknown_kind not_a_text_model_lora* "
    "not_a_text_model_assistant hf_lora_folder hf_other_assistant",
    11: "context_of_a_million_tokens context_of_zero",
    12: "hf_single_file hf_rope_that_is_not_served duplicate_key",
    13: "split_first_shard split_middle_shard split_last_shard split_folder split_with_a_hole",
    15: "file_pointer.gguf file_pointer.safetensors hf_shard_is_a_pointer split_with_a_pointer",
    16: "three_bytes header_only_half data_cut_by_one_byte offset_that_wraps stub_with_*",
    18: "five_dimensions nine_dimensions most_dimensions",
    20: "string_length_past_the_end array_length_past_the_end alignment_0 alignment_3 "
    "alignment_huge",
    22: "nested_array deeply_nested_array unknown_element_type",
    23: "big_endian big_endian_magic",
    24: "with_a_template_that_runs_code with_a_template_that_is_cut",
    26: "folder_with_a_half_written_file",
    27: "token_table_in_TQ* layer_table_in_TQ* smallest_dynamic_mix",
    28: "every_type_somewhere type_id_*",
    30: "all_in_MXFP4",
    31: "token_table_in_F16 token_table_in_Q8_0 layer_table_in_F16 layer_table_in_Q8_0",
    33: "layer_table_in_Q2_K layer_table_in_Q5_K",
    36: "hf_scheme_*",
    38: "hf_mlx",
    39: "hf_single_file hf_shards_and_index hf_shards_without_index",
    40: "hf_shard_missing hf_shard_renamed hf_index_to_the_wrong_shard",
    42: "hf_unified_12b hf_other_gemma3n",
    44: "hf_template_in_its_own_file hf_template_in_both_files hf_template_in_the_config "
    "hf_templates_by_name hf_templates_by_name_without_a_default without_a_template",
    45: "hf_int8_leftovers",
    47: "random_bytes header_past_the_end not_json overlap range_past_the_end unknown_dtype",
    179: "head_stored_twice hf_tied_head_stored_too",
}
# What no file shows: arithmetic, processes, devices. docs/faults.md names the tests.
ELSEWHERE = {7, 10, 35, 180, 182, 184, 185, 186, 187}


@pytest.mark.parametrize("number", FILES)
def test_every_fault_has_its_files(number: int) -> None:
    for pattern in FILES[number].split():
        expression = re.compile(re.escape(pattern).replace(r"\*", ".*"))
        assert any(expression.fullmatch(name) for name in NAMES), pattern


def test_no_fault_is_left_out() -> None:
    text = (ROOT / "docs" / "faults.md").read_text(encoding="utf-8")
    sections = re.split(r"^## ", text, flags=re.M)
    numbers: set[int] = set()
    for title in ("Files", "Quantised types", "Memory"):
        section = next(s for s in sections if s.startswith(title))
        for row in re.findall(r"^\| ([\d, ]+)", section, flags=re.M):
            numbers |= {int(n) for n in re.findall(r"\d+", row)}
    assert numbers == FILES.keys() | ELSEWHERE
