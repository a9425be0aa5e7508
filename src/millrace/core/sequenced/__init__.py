"""Sequenced logs: the sequencer that gives out positions, the appender that carries each block to
its copyset, the activation and recovery of epochs, and the storage node's part of it all.
Pure, as all of the core; reading is not here, it is the same for every kind of log."""
