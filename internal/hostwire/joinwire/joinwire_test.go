package joinwire_test

import (
	"bytes"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/fusevm/fuse/internal/hostwire/joinwire"
)

const tokenID = "01ARZ3NDEKTSV4RRFFQ69G5FAV"

func token(t *testing.T) joinwire.Token {
	t.Helper()
	tok, err := joinwire.NewToken(tokenID)
	if err != nil {
		t.Fatal(err)
	}
	return tok
}

func TestTokenText(t *testing.T) {
	tok := token(t)
	again, err := joinwire.ParseToken(" " + tok.Text() + "\n")
	if err != nil || again.Text() != tok.Text() || again.ID != tokenID {
		t.Fatalf("%v, %v", again, err)
	}
	secret := strings.TrimPrefix(tok.Text(), "fjt_"+tokenID+"_")
	for _, shown := range []string{fmt.Sprint(tok), fmt.Sprintf("%v", tok), tok.String()} {
		if strings.Contains(shown, secret) {
			t.Errorf("shown as %q", shown)
		}
	}
	for _, bad := range []string{"", "fjt_", "fjt_" + tokenID, tok.Text() + "A", "xjt" + tok.Text()[3:], strings.ToLower(tok.Text())} {
		if _, err := joinwire.ParseToken(bad); !errors.Is(err, joinwire.ErrToken) {
			t.Errorf("%q: %v", bad, err)
		}
	}
}

func TestProofs(t *testing.T) {
	tok, other := token(t), token(t)
	v := tok.Verifier()
	e := joinwire.Exchange{TokenID: tokenID, ClientNonce: "c", ServerNonce: "s", Document: []byte(`{"id":"h1"}`)}
	proof := tok.Prove(e)
	if !v.Check(e, proof) {
		t.Fatal("the holder's proof is refused")
	}
	changed := map[string]func(*joinwire.Exchange){
		"another token":        func(e *joinwire.Exchange) { e.TokenID = "x" },
		"another client nonce": func(e *joinwire.Exchange) { e.ClientNonce = "d" },
		"another server nonce": func(e *joinwire.Exchange) { e.ServerNonce = "t" },
		"another document":     func(e *joinwire.Exchange) { e.Document = []byte(`{"id":"h2"}`) },
		"parts moved":          func(e *joinwire.Exchange) { e.ClientNonce, e.ServerNonce = "cs", "" },
	}
	for name, change := range changed {
		x := e
		change(&x)
		if v.Check(x, proof) {
			t.Errorf("%s: the proof holds", name)
		}
		if bytes.Equal(v.Answer(x, nil), v.Answer(e, nil)) {
			t.Errorf("%s: the answer's proof is the same", name)
		}
	}
	for name, p := range map[string][]byte{"none": nil, "short": proof[:31], "of another token": other.Prove(e), "what is stored": v.StoredKey, "the server's key": v.ServerKey} {
		if v.Check(e, p) {
			t.Errorf("%s: it is taken", name)
		}
	}
	answer := joinwire.Joined{Answer: []byte("yes"), Proof: v.Answer(e, []byte("yes"))}
	if !tok.CheckAnswer(e, answer) || other.CheckAnswer(e, answer) || tok.CheckAnswer(e, joinwire.Joined{Answer: []byte("no"), Proof: answer.Proof}) {
		t.Error("the answer's proof does not tell who gave which")
	}
}

func TestSealedToken(t *testing.T) {
	tok := token(t)
	sealed, err := tok.Seal("c", "s", "the agent's token")
	if err != nil || bytes.Contains(sealed, []byte("agent")) {
		t.Fatalf("%q, %v", sealed, err)
	}
	if plain, err := tok.Verifier().Open("c", "s", sealed); err != nil || plain != "the agent's token" {
		t.Errorf("%q, %v", plain, err)
	}
	for name, open := range map[string]func() (string, error){
		"another exchange": func() (string, error) { return tok.Verifier().Open("c", "t", sealed) },
		"another token":    func() (string, error) { return token(t).Verifier().Open("c", "s", sealed) },
		"cut":              func() (string, error) { return tok.Verifier().Open("c", "s", sealed[:5]) },
	} {
		if plain, err := open(); err == nil {
			t.Errorf("%s: %q", name, plain)
		}
	}
}
