"""One file per figure: ours, and a limit of the hardware or a peer, measured in the same run by `headrace bench`."""
