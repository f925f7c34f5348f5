;;; What the tests do in Emacs: edit a file with eglot as its user would, key by key.  -*- lexical-binding: t -*-

(require 'eglot)
(setq make-backup-files nil create-lockfiles nil native-comp-jit-compilation nil
      eglot-sync-connect 30 eglot-connect-timeout 60 eglot-autoshutdown t)

(defun scene (server file mode place keys)
  "Edit FILE in MODE with SERVER, a command: go behind the first PLACE, press KEYS, save."
  (add-to-list 'eglot-server-programs (cons mode server))
  (find-file file)
  (funcall mode)
  (call-interactively #'eglot)
  (search-forward place)
  (switch-to-buffer (current-buffer))
  (execute-kbd-macro (kbd keys))
  (save-buffer)
  (eglot-shutdown (eglot-current-server)))
