"""`python -m rljob_trainer.megatron.indexed PREFIX TARGET`: where the documents of PREFIX.bin start, as Megatron's own reader finds it in PREFIX.idx.

Writes the starts, in tokens and with the end of the last document behind them, to TARGET (.npy, int64) and prints the type of the tokens, or why it
cannot be read. A process of its own: the driver, which asks for it, has no torch.
"""

import sys

import numpy as np
from megatron.core.datasets.indexed_dataset import IndexedDataset


def main() -> None:
    prefix, target = sys.argv[1:]
    index = IndexedDataset(prefix).index
    ends = np.cumsum(index.sequence_lengths, dtype=np.int64)
    if not np.array_equal(index.sequence_pointers, (ends - index.sequence_lengths) * index.dtype_size):
        raise ValueError("its sequences do not lie one behind another in the .bin file")
    np.save(target, np.concatenate(([0], ends))[index.document_indices])
    print(np.dtype(index.dtype).name)


if __name__ == "__main__":
    try:
        main()
    except Exception as error:  # Megatron asserts, and its half-made data set complains once more on stderr
        print(f"{type(error).__name__}: {error}")
        sys.exit(1)
