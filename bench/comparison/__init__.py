# SPDX-License-Identifier: Apache-2.0
"""The parts of bench/compare.py: storage backends of SGLang side by side in one run."""
