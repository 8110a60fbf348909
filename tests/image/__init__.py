"""The Dockerfile, built and run (make test-image). `make test` leaves this folder out: it takes minutes, and root."""
