"""Names of files with secrets: these files are never read, indexed or put into a prompt, not even if open.

Names are compared ignoring case, and also without the affixes of backup copies (`.env~`, `server.key.bak`).
"""

import re
from enum import Enum
from fnmatch import translate
from functools import lru_cache
from pathlib import PurePath

SECRET_FILES = (
    # deployment settings
    *(".env*", "*.env", ".dev.vars*", "secrets.*", "secret.*", "*.secret", "*.secrets", "credentials*"),
    *("*credentials.json", "*credentials*.json", "service-account*.json", "service_account*.json"),
    *("*.tfvars*", "*.tfstate*", "kubeconfig*", "*.kubeconfig", ".vault-token", ".vault_pass*", "vault_pass*"),
    # keys and certificates
    *("*.pem", "*.key", "*.p12", "*.pfx", "*.p8", "*.pkcs12", "*.cert", "*.crt", "*.der", "*.jks", "*.keystore"),
    *("*.ppk", "*.gpg", "*.pgp", "*.age", "*.kdb", "*.kdbx", "*.keychain*", "*.ovpn", "*.mobileprovision"),
    *("id_rsa*", "id_dsa*", "id_ecdsa*", "id_ed25519*", "id_xmss*", "authorized_keys*"),
    # passwords and tokens that tools save
    *(".netrc*", "_netrc*", ".npmrc*", ".yarnrc*", ".pypirc*", ".git-credentials*", ".htpasswd*", ".pgpass*"),
    *(".my.cnf*", ".mylogin.cnf", ".s3cfg*", ".boto*", ".dockercfg*", ".dockerconfigjson", ".passwd*"),
    *("auth.json", ".terraformrc", "terraform.rc", "api-key", "api_key", "api-key.*", "api_key.*", "apikey.*"),
    # shell histories
    *(".*_history", ".*history"),
)
SECRET_FOLDERS = (".aws", ".ssh", ".gnupg", ".azure", ".oci", ".password-store", ".kube", ".secrets")
SECRET_PATHS = (".docker/config.json", ".config/gcloud/", ".config/gh/", ".cargo/credentials", ".gem/credentials")

_FILE = re.compile("|".join(translate(pattern) for pattern in SECRET_FILES))
_BACKUP_AFFIX = re.compile(r"^(?:\.?#)|(?:~|#|[._-](?:bak|backup|old|orig|save|copy|tmp|sw[a-p]|\d+))+$")


@lru_cache(4096)
def is_secret(path: PurePath) -> bool:
    """Return whether the name of a file, or of a folder above it, marks secrets."""
    *folders, name = [part.casefold() for part in path.parts] or [""]
    if any(folder in SECRET_FOLDERS for folder in (*folders, name)):
        return True
    full_name = "/".join((*folders, name))
    if any(f"/{part}" in f"/{full_name}" for part in SECRET_PATHS):
        return True
    stem = _BACKUP_AFFIX.sub("", name)
    return any(_FILE.match(candidate) for candidate in (name, stem, stem.removeprefix(".")))


class Refusal(Enum):
    """Reasons to refuse a file, as shown to users. A file that git ignores is still completed on request."""

    SECRET = "its name is typical of files with secrets"
    OUTSIDE = "it is a link to a file outside of the project"
    OURS = ".localdflashignore names it"
    GIT = ".gitignore names it"
