package standby

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"net/http"
	"net/netip"
	"strings"
)

// Headers with which a standby passes a call on. Only with a proof that holds
// do they mean anything to the leader; it never lets them through.
const (
	headerStandby = "Fuse-Standby"        // name of the standby
	headerClient  = "Fuse-Standby-Client" // address and port of its caller
	headerProof   = "Fuse-Standby-Proof"
)

// maxName bounds the name of a standby in a header.
const maxName = 128

// sign makes a call one that comes from a standby. secret is the leader's, which
// only servers on the same store know.
func sign(h http.Header, secret, name, client, method, uri string) {
	name = headerText(name)
	h.Set(headerStandby, name)
	h.Set(headerClient, client)
	h.Set(headerProof, proof(secret, name, client, method, uri))
}

func proof(secret string, parts ...string) string {
	mac := hmac.New(sha256.New, []byte(secret))
	mac.Write([]byte("fuse standby\n" + strings.Join(parts, "\n")))
	return hex.EncodeToString(mac.Sum(nil))
}

// forwarded takes the headers out of a request and returns what they said, if
// the proof holds. Method and target are part of it, so that one seen on the
// way is good for that call alone.
func forwarded(r *http.Request, secret string) (name, client string, ok bool) {
	name, client = r.Header.Get(headerStandby), r.Header.Get(headerClient)
	shown := r.Header.Get(headerProof)
	if name == "" && client == "" && shown == "" {
		return "", "", false
	}
	strip(r.Header)
	want := proof(secret, name, client, r.Method, r.RequestURI)
	if secret == "" || !hmac.Equal([]byte(want), []byte(shown)) {
		return "", "", false
	}
	if client != "" {
		if _, err := netip.ParseAddrPort(client); err != nil {
			return "", "", false
		}
	}
	return name, client, true
}

func strip(h http.Header) {
	h.Del(headerStandby)
	h.Del(headerClient)
	h.Del(headerProof)
}

// headerText keeps what a header can carry.
func headerText(s string) string {
	s = strings.Map(func(r rune) rune {
		if r < ' ' || r > '~' {
			return '_'
		}
		return r
	}, s)
	return strings.TrimSpace(s[:min(len(s), maxName)])
}
