"""Cutting a decoder's OpenVINO graph into stages, and preparing a stage for its engine."""
