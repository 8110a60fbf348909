"""`vivavoce bench load` and `compare`: speech servers measured from the listener's side.

It knows what goes over the wire and nothing of any server's inside, so that every OpenAI-compatible server is measured
alike. The method is nari-labs' (github.com/nari-labs/benchmarks, docs/tts_bench/methodology.md), so that numbers
compare: open-loop Poisson arrivals, time zero at the first body byte sent, a virtual player, and a run that counts only
if every request was complete and audible.

servers.py what to ask for, load.py when, transports.py and live_text.py how · reception.py what came, and when ·
player.py what a listener would have heard of it · metrics.py figures · compare.py two servers · report.py, plots.py
"""
