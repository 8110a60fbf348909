"""Engines that run in processes of their own, and the server's side of those processes.

    server process                                      engine process, one per model (or per `--workers`)
    ┌───────────────────────────────────────┐           ┌──────────────────────────────────────────────┐
    │ asyncio thread                        │           │ main thread                                  │
    │   EnginePool ──► EngineProcess ◄─┐    │           │   Worker ──► EngineLoop ──► Runner, tensors  │
    │                  commands │      │    │           │     │ Ask, Encode                            │
    │                           ▼      │    │  pickles  │     ▼                                        │
    │ watching thread         Watcher  │    │   over    │ encoder thread                               │
    │   (one per process)       │   events  │ a socket  │   ReferenceEncoder                           │
    │                         Child ◄───────┼───────────┼─► Pipe                                       │
    └───────────────────────────────────────┘           └──────────────────────────────────────────────┘

    ──► LoadCommand, RemoteSubmit, AppendText, Cancel, ReadProgress, Ask, Ping, Shutdown
    ◄── Loaded, Report (audio, ends, the loop's state), Answer, Logged, Broken

`wire.py` lists the messages. `engine_process.py` is what callers use, `watcher.py` keeps a process running, `child.py`
holds one process, and `worker.py` runs inside it. `pool.py` puts several processes behind one engine.
"""
