"""Which way from server to server."""
