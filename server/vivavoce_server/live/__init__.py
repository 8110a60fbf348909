"""Live sockets: a text goes in while its speech comes out."""
