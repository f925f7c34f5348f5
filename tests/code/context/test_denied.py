"""The list of secret files: what it refuses, what it leaves alone."""

from pathlib import PurePath

from localdflash.code.context.denied import SECRET_FILES, is_secret

SECRET = [
    *(".env", ".env.local", ".ENV", ".Env.Production", "prod.env", ".envrc", ".dev.vars", "a/b/.env"),
    *("server.pem", "server.KEY", "x.p12", "x.pfx", "x.kdbx", "x.jks", "ca.crt", "x.gpg", "x.ppk"),
    *("id_rsa", "id_rsa.pub", "ID_ED25519", "authorized_keys"),
    *(".netrc", "_netrc", ".npmrc", ".pypirc", ".git-credentials", ".pgpass", ".htpasswd"),
    *("credentials", "credentials.json", "Credentials.toml", "secrets.yaml", "secrets.py", "my-credentials.json"),
    *("prod.tfvars", "prod.tfvars.json", "terraform.tfstate", "service-account.json", "service-account-7.json"),
    *(".aws/config", "home/.ssh/config", ".gnupg/x", ".kube/config", ".docker/config.json", ".config/gcloud/x.db"),
    *(".env~", ".env.bak", ".env.swp", "#.env#", ".#.env", "server.key.bak", "server.key.old", ".server.key.swp"),
    *("id_rsa~", "secrets.yml.orig", ".bash_history", "auth.json", "api-key", ".ssh"),
    "/home/someone/.ssh/id_other/deep/file.py",
]
PLAIN = [
    *("main.py", "environment.py", "env.py", "keys.py", "key.py", "monkey.py", "secret_santa.py", "tokens.py"),
    *("credential_store/main.py", "credentials-service/main.py", "a/secrets/main.py", "ssh.py", "config.json"),
    *("src/aws/x.py", "kube/config.py", "pem.py", "docs/env.md", "tokenizer.json", "", "history.py"),
]


def test_secret_names() -> None:
    assert [name for name in SECRET if not is_secret(PurePath(name))] == []


def test_plain_names() -> None:
    assert [name for name in PLAIN if is_secret(PurePath(name))] == []


def test_every_pattern_in_capitals_and_in_a_folder() -> None:
    names = [pattern.replace("*", "xy") for pattern in SECRET_FILES]
    assert all(is_secret(PurePath("some", name.upper())) for name in names)
    assert all(is_secret(PurePath("some", f"{name}~")) for name in names)
