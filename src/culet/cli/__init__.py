"""The command line. The only part that reads the environment and writes to the terminal."""
