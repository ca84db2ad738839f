"""What knows nothing of training: errors, quantities, files, the registry of plug-ins, options."""
