"""`vllm bench serve` without the rest of vLLM's command line, whose other subcommands want a GPU's libraries."""

from vllm.benchmarks.serve import add_cli_args, main
from vllm.utils.argparse_utils import FlexibleArgumentParser

if __name__ == "__main__":
    parser = FlexibleArgumentParser(description="vLLM's own benchmark client")
    add_cli_args(parser)
    main(parser.parse_args())
