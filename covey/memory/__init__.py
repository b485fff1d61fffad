"""Memory that several processes see. Nothing here knows torch, agents or environments."""
