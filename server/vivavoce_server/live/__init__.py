"""Live sockets: text goes in while its speech comes out."""
