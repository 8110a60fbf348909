"""The command `vivavoce batch`: a file of lines or a book becomes numbered audio files, and a crash costs a line.

`command` has the arguments, and `running` a run. `sources` reads what is to be said (`table`, `cues`, `markdown_book`,
`epub`), `job` remembers what has been said, `work` compares the two, `speaking` asks the server, `files` makes the
audio files, and `whole` joins them and writes subtitles.
"""
