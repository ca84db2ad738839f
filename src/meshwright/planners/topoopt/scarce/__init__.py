"""Plans to start from where no server has memory for its part of every operator."""
