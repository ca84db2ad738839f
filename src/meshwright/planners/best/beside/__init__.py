"""Plans that are told beside the quickest: the simplest nearly as quick, and runners-up with other degrees."""
