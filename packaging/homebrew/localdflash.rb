# Not tried: there was neither a Mac nor Homebrew nor Ruby. For a tap, not for homebrew-core: pip fetches the
# dependencies in the versions of constraints.txt. There is no release yet: set the address of yours in `head`.
# brew install --HEAD ./packaging/homebrew/localdflash.rb
class Localdflash < Formula
  include Language::Python::Virtualenv

  desc "Local coding assistant: chat, completions and an API on your own machine"
  homepage "https://example.org/localdflash"
  license "Apache-2.0"
  head "https://example.org/localdflash.git", branch: "main"

  depends_on "python@3.13"

  def install
    virtualenv_create(libexec, "python3.13", without_pip: false)
    system libexec/"bin/python", "-m", "pip", "install", "--constraint", "constraints.txt", buildpath
    bin.install_symlink libexec/"bin/localdflash"
    system libexec/"bin/python", "-P", "lab/scripts/manual.py", buildpath/"manual"
    man1.install "manual/localdflash.1"
    bash_completion.install "manual/localdflash.bash" => "localdflash"
    zsh_completion.install "manual/_localdflash"
    fish_completion.install "manual/localdflash.fish"
  end

  service do
    run [opt_bin/"localdflash", "serve"]
    keep_alive crashed: true
  end

  test do
    ENV["LOCALDFLASH_HOME"] = testpath/"home"
    assert_match(/\S/, shell_output("#{bin}/localdflash chat --no-daemon -p hi"))
  end
end
