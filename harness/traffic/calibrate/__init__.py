"""How exact the load client is on this host: it plays against a paced server whose true send times are logged."""
