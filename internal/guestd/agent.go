package guestd

import (
	"crypto/tls"
	"encoding/json"
	"io"
	"io/fs"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
)

// maxSecretsFile bounds what is read of the secrets to count them, in bytes.
const maxSecretsFile = 4 << 20

// agentServer is the published port: TLS with the machine's own certificate,
// on the paths of the existing guest agent.
func (s *Server) agentServer() *http.Server {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /health", s.health)
	mux.Handle("GET /v1/info", s.authorize(http.HandlerFunc(s.info), func(w http.ResponseWriter, _ *http.Request) {
		writeError(w, http.StatusUnauthorized, "unauthorized", noTokenMessage)
	}))
	return &http.Server{
		Handler: mux,
		TLSConfig: &tls.Config{
			GetCertificate: func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return s.id.Load().cert() },
			MinVersion:     tls.VersionTLS12,

			GetConfigForClient: s.awaitThaw,
		},
		ReadHeaderTimeout: headerTimeout,
		ReadTimeout:       headerTimeout,
		WriteTimeout:      headerTimeout,
		IdleTimeout:       agentIdle,
		MaxHeaderBytes:    maxHeaderBytes,
		ErrorLog:          slog.NewLogLogger(s.cfg.Log.Handler(), slog.LevelDebug), // strangers' handshakes
	}
}

func (s *Server) health(w http.ResponseWriter, _ *http.Request) {
	writeJSON(w, http.StatusOK, map[string]any{"status": "ok", "vm_id": s.id.Load().vmID})
}

func (s *Server) info(w http.ResponseWriter, r *http.Request) {
	manifest, err := s.manifestBytes()
	secrets := 0
	if err == nil {
		secrets, err = s.secretCount()
	}
	if err != nil {
		s.cfg.Log.ErrorContext(r.Context(), "cannot read the machine's files", "error", err)
		writeError(w, http.StatusInternalServerError, "internal", "the machine's own files cannot be read")
		return
	}
	writeJSON(w, http.StatusOK, map[string]any{
		"vm_id":          s.id.Load().vmID,
		"manifest_bytes": manifest,
		"secret_count":   secrets,
		"gateway":        "",
		"tls":            true,
	})
}

// manifestBytes is the length of the manifest; zero if there is none yet.
func (s *Server) manifestBytes() (int64, error) {
	info, err := os.Stat(filepath.Join(s.cfg.FuseDir, "manifest.json"))
	if os.IsNotExist(err) {
		return 0, nil
	}
	if err != nil {
		return 0, err
	}
	return info.Size(), nil
}

// secretCount counts the secrets; what they are is never kept.
func (s *Server) secretCount() (int, error) {
	f, err := os.Open(filepath.Join(s.cfg.FuseDir, "secrets.json"))
	if os.IsNotExist(err) {
		return 0, nil
	}
	if err != nil {
		return 0, err
	}
	defer f.Close()
	var secrets map[string]json.RawMessage
	if err := json.NewDecoder(io.LimitReader(f, maxSecretsFile)).Decode(&secrets); err != nil {
		return 0, &fs.PathError{Op: "decode", Path: f.Name(), Err: fs.ErrInvalid} // the cause may quote a secret
	}
	return len(secrets), nil
}

func writeJSON(w http.ResponseWriter, status int, body any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(body) // the caller is gone if it fails
}

func writeError(w http.ResponseWriter, status int, code, message string) {
	writeJSON(w, status, map[string]any{"error": map[string]string{"code": code, "message": message}})
}
