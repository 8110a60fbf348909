"""The command `vivavoce batch`: a file of lines or a book becomes numbered audio files, and a crash costs a line.

`sources` reads what is to be said (`table`, `cues`, `markdown_book`, `epub`), `job` remembers what has been said,
`speaking` asks the server, `files` makes the audio files, `whole` joins them and writes subtitles.
"""
