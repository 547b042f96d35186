"""The errors that a user can act on; each says what was wrong, where, and what is allowed."""


class KVMarkError(Exception):
    """Base of every error whose text is meant for the user; shown without a traceback."""


class ConfigError(KVMarkError):
    """A configuration value that can't be carried out. Raised before anything is launched."""


class Unsupported(KVMarkError):
    """A backend can't carry out a strategy or setting; the text is the reason shown in the support table."""


class SetupError(KVMarkError):
    """An environment, package or model could not be prepared; the text says which step and what to do."""


class LaunchError(KVMarkError):
    """A server did not start, died, or is not ours; the text holds the last useful lines of its log."""


class DamagedFile(KVMarkError, ValueError):
    """A file of a results folder that can't be read as what it should be; the text names it."""


class StorageError(KVMarkError):
    """Results can't be written (full disk, no permission); what was measured before stays intact."""
