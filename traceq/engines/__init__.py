"""Where the ranks of a job are read: in a pool of processes, or on a cluster; what they leave is merged here."""
