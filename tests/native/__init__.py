"""The CPU's kernels without a server: sanitizers, an emulated ARM processor, wheels (make test-native).

`make test` leaves this folder out: compilers run for minutes.
"""
