"""Engines that run in processes of their own, and the ways to those processes.

A server of one process starts an engine process and speaks through it:

    server process                                      engine process, one per model (or per `--workers`)
    ┌───────────────────────────────────────┐           ┌──────────────────────────────────────────────┐
    │ asyncio thread                        │           │ main thread                                  │
    │   EnginePool ──► EngineProcess ◄─┐    │           │   Worker ──► EngineLoop ──► Runner, tensors  │
    │                  commands │      │    │           │     │ Ask, Encode                            │
    │                           ▼      │    │  pickles  │     ▼                                        │
    │ watching thread         Watcher  │    │   over    │ encoder thread                               │
    │   (one per process)       │   events  │ a socket  │   ReferenceEncoder                           │
    │                         Child ◄───────┼───────────┼─► Fronts                                     │
    └───────────────────────────────────────┘           └──────────────────────────────────────────────┘

    ──► LoadCommand, RemoteSubmit, AppendText, Cancel, ReadProgress, Ask, Ping, Shutdown
    ◄── Loaded, Report (audio, ends, the loop's state), Answer, Logged, Broken

A server of several processes has a supervisor, which starts the engine process, and fronts, each of which speaks with
it over a socket of its own. Speech does not pass through the supervisor:

    front: LinkedEngine ◄─► Link ◄── state of the process; need ──► supervisor: EngineHost ──► Watcher ──► Child
                             ▲                                                                               ▲
                             └── RemoteSubmit, …; Report, Answer ──► engine process: Fronts ◄── LoadCommand ─┘

`wire.py` and `host_wire.py` list the messages. `remote_engine.py` is the callers' half of an engine, and `carrier.py`
the base of both ways to a process: `watcher.py` keeps one running, `link.py` reaches one that `host.py` keeps.
`engine_process.py` has the three classes that others use. `child.py` holds one process, and `worker.py` runs inside it;
`fronts.py` has its ends of the links. `pool.py` puts several processes behind one engine.
"""
