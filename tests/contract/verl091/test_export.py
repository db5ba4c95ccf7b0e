"""What `adjudge export --format verl` writes, read by the data sets of verl 0.9, too."""

from tests.contract.verl061.test_export import (
    table,
    test_rl_reads_the_prompts,
    test_sft_reads_the_messages,
)

__all__ = ["table", "test_rl_reads_the_prompts", "test_sft_reads_the_messages"]
