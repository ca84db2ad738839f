"""What a co-design is written as."""
