// Package githook hears from git servers that somebody pushed, and has the
// playgrounds that follow the branch looked at. Nothing else of a message is
// believed: what is fetched is what the repository's own server has.
package githook

import (
	"crypto/hmac"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/hex"
	"encoding/json"
	"net/http"
	"strings"

	"github.com/fusevm/fuse/internal/fleet"
)

// Push is what a message says.
type Push struct {
	Kind     string // push, ping or other
	Delivery string // the server's id of the message; empty: it gives none
	Branch   string // of a push
	Commit   string // where it is now; empty: gone
}

// headers of the servers that are known.
var (
	eventHeaders    = []string{"X-GitHub-Event", "X-Gitea-Event", "X-Gogs-Event", "X-Forgejo-Event", "X-Gitlab-Event"}
	deliveryHeaders = []string{"X-GitHub-Delivery", "X-Gitea-Delivery", "X-Forgejo-Delivery", "X-Gogs-Delivery", "X-Gitlab-Event-UUID", "Idempotency-Key"}
)

const maxDelivery = 128

// Verify reports whether a message was made by who knows the secret. It takes the
// same time whatever it is given.
func Verify(h http.Header, body, secret []byte) bool {
	mac := hmac.New(sha256.New, secret)
	mac.Write(body)
	want := mac.Sum(nil)
	signature := h.Get("X-Hub-Signature-256")
	if signature == "" {
		signature = h.Get("X-Gitea-Signature")
	}
	got, err := hex.DecodeString(strings.TrimPrefix(signature, "sha256="))
	signed := err == nil && hmac.Equal(got, want)
	token := sha256.Sum256([]byte(h.Get("X-Gitlab-Token")))
	known := sha256.Sum256(secret)
	return signed || len(secret) > 0 && subtle.ConstantTimeCompare(token[:], known[:]) == 1
}

// Read reads a message that was verified.
func Read(h http.Header, body []byte) (p Push, err error) {
	p.Kind = "other"
	for _, name := range eventHeaders {
		switch v := strings.ToLower(h.Get(name)); v {
		case "":
			continue
		case "push", "push hook", "create", "delete":
			p.Kind = "push"
		case "ping":
			p.Kind = "ping"
		}
		break
	}
	for _, name := range deliveryHeaders {
		if v := h.Get(name); v != "" && len(v) <= maxDelivery {
			p.Delivery = v
			break
		}
	}
	if p.Kind != "push" {
		return p, nil
	}
	var m struct {
		Ref     string `json:"ref"`
		RefType string `json:"ref_type"` // of create and delete, whose ref is the name alone
		After   string `json:"after"`
		Deleted bool   `json:"deleted"`
	}
	if err := json.Unmarshal(body, &m); err != nil {
		return p, fleet.Errorf(fleet.CodeInvalidArgument, "the message is not JSON").
			With(fleet.DetailRemedy, "have the git server send application/json")
	}
	branch, ok := strings.CutPrefix(m.Ref, "refs/heads/")
	switch {
	case ok:
	case m.RefType == "branch":
		branch = m.Ref
	default: // a tag
		p.Kind = "other"
		return p, nil
	}
	p.Branch = branch
	if !m.Deleted && strings.Trim(m.After, "0") != "" {
		p.Commit = m.After
	}
	return p, nil
}
