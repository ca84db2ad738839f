"""Parts onto devices whose links differ."""
