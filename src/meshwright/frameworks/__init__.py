"""Programs that run plans: what each can run, how it runs it, how it is told."""
