"""Cutting a decoder's OpenVINO graph into stages, and preparing a stage for its engine. Imports OpenVINO."""

from shards.graph.constants import constant_ranges, layer_spans
from shards.graph.cut import cut_stage, depth
from shards.graph.head import cut_head, trim_head
from shards.graph.paged import CachePort, block_tokens, cache_ports, make_paged
from shards.graph.rows import gather_output_rows, is_tail, output_hidden_rows
from shards.graph.waist import Layers, find_layers

__all__ = [
    "CachePort",
    "Layers",
    "block_tokens",
    "cache_ports",
    "constant_ranges",
    "cut_head",
    "cut_stage",
    "depth",
    "find_layers",
    "gather_output_rows",
    "is_tail",
    "layer_spans",
    "make_paged",
    "output_hidden_rows",
    "trim_head",
]
