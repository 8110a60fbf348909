"""`vivavoce bench load` and `compare`: measure speech servers from the listener's side.

The measurement sees only what goes over the wire, so it treats every OpenAI-compatible server alike. The method is
nari-labs' (github.com/nari-labs/benchmarks, docs/tts_bench/methodology.md), so that figures can be compared: open-loop
Poisson arrivals, time zero at the first byte of the body sent, a virtual player, and runs that are valid only if every
request was complete and audible.

servers.py   fields and messages that each kind of server takes
prompts/     texts, in classes
load.py      the load, and one generator's share of it
generators.py, spool.py  several generators, each a process, and the files of their measurements
exchange.py, transports.py, live_text.py   a request over HTTP, and over a WebSocket
reception.py, onset.py  the arrival times of the audio, and its first audible sample
player.py    playback of that audio as a listener would hear it
metrics.py, summary.py  figures of a request and of a run
compare.py   two servers under the same load
limit.py     the generator's own limit
report.py, plots.py, progress.py   output
"""
