package githook

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"net/http"
	"testing"
	"time"
)

func head(kv ...string) http.Header {
	h := http.Header{}
	for i := 0; i < len(kv); i += 2 {
		h.Set(kv[i], kv[i+1])
	}
	return h
}

func sum(secret, body string) string {
	mac := hmac.New(sha256.New, []byte(secret))
	mac.Write([]byte(body))
	return hex.EncodeToString(mac.Sum(nil))
}

func TestVerify(t *testing.T) {
	const secret, body = "a secret of a hook", `{"ref":"refs/heads/main"}`
	for name, c := range map[string]struct {
		header http.Header
		body   string
		want   bool
	}{
		"GitHub":                {head("X-Hub-Signature-256", "sha256="+sum(secret, body)), body, true},
		"Gitea":                 {head("X-Gitea-Signature", sum(secret, body)), body, true},
		"GitLab":                {head("X-Gitlab-Token", secret), body, true},
		"another body":          {head("X-Hub-Signature-256", "sha256="+sum(secret, body)), body + " ", false},
		"another secret":        {head("X-Hub-Signature-256", "sha256="+sum("b", body)), body, false},
		"no signature":          {head(), body, false},
		"an empty signature":    {head("X-Hub-Signature-256", "sha256="), body, false},
		"a short signature":     {head("X-Hub-Signature-256", "sha256="+sum(secret, body)[:32]), body, false},
		"the old digest":        {head("X-Hub-Signature", "sha1="+sum(secret, body)), body, false},
		"another token":         {head("X-Gitlab-Token", secret+"x"), body, false},
		"an empty token":        {head("X-Gitlab-Token", ""), body, false},
		"no hexadecimal digits": {head("X-Hub-Signature-256", "sha256=zz"), body, false},
	} {
		if got := Verify(c.header, []byte(c.body), []byte(secret)); got != c.want {
			t.Errorf("%s: %v", name, got)
		}
	}
	if Verify(head("X-Gitlab-Token", ""), nil, nil) {
		t.Error("without a secret everybody is let in")
	}
}

func TestRead(t *testing.T) {
	const commit = "0123456789012345678901234567890123456789"
	for name, c := range map[string]struct {
		header http.Header
		body   string
		want   Push
		bad    bool
	}{
		"a push":             {head("X-GitHub-Event", "push", "X-GitHub-Delivery", "d1"), `{"ref":"refs/heads/a/b","after":"` + commit + `"}`, Push{"push", "d1", "a/b", commit}, false},
		"GitLab's":           {head("X-Gitlab-Event", "Push Hook", "X-Gitlab-Event-UUID", "u"), `{"ref":"refs/heads/main","after":"` + commit + `"}`, Push{"push", "u", "main", commit}, false},
		"a branch that goes": {head("X-Gitea-Event", "push"), `{"ref":"refs/heads/x","after":"0000000000000000000000000000000000000000"}`, Push{Kind: "push", Branch: "x"}, false},
		"one that was made":  {head("X-Gitea-Event", "create"), `{"ref":"x","ref_type":"branch"}`, Push{Kind: "push", Branch: "x"}, false},
		"a tag":              {head("X-GitHub-Event", "push"), `{"ref":"refs/tags/v1","after":"` + commit + `"}`, Push{Kind: "other"}, false},
		"a ping":             {head("X-GitHub-Event", "ping", "X-GitHub-Delivery", "p"), `not read`, Push{Kind: "ping", Delivery: "p"}, false},
		"an issue":           {head("X-GitHub-Event", "issues"), `{}`, Push{Kind: "other"}, false},
		"nothing":            {head(), ``, Push{Kind: "other"}, false},
		"no JSON":            {head("X-GitHub-Event", "push"), `ref=x`, Push{Kind: "push"}, true},
	} {
		got, err := Read(c.header, []byte(c.body))
		if got != c.want || (err != nil) != c.bad {
			t.Errorf("%s: %+v %v", name, got, err)
		}
	}
}

func FuzzRead(f *testing.F) {
	f.Add("push", []byte(`{"ref":"refs/heads/main","after":"00"}`))
	f.Fuzz(func(t *testing.T, event string, body []byte) {
		p, err := Read(http.Header{"X-Github-Event": {event}}, body)
		if err == nil && p.Kind != "push" && (p.Branch != "" || p.Commit != "") {
			t.Errorf("%+v", p)
		}
	})
}

func TestRoom(t *testing.T) {
	s := &Service{}
	now := time.Now()
	for range perMinute {
		if !s.room("h", now) {
			t.Fatal("there was no room")
		}
	}
	if s.room("h", now) || !s.room("other", now) || !s.room("h", now.Add(time.Minute)) {
		t.Error("room is not counted by hook and minute")
	}
}
