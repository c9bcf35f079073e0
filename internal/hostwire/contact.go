package hostwire

import (
	"bufio"
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"encoding/hex"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/fusevm/fuse/internal/fleet"
)

// ContactPath is where a host agent answers a first contact.
const ContactPath = "/fuse.host.v1/contact"

// proofHeader carries a proof, in a first contact and in its answer.
const proofHeader = "Fuse-Contact-Proof"

// ErrWrongToken says that a host does not take the token that was proved.
var ErrWrongToken = errors.New("the host agent was started with another token")

// contactProof proves a token over one TLS connection. What is exported of the
// connection is known to its two ends only, so whoever stands between the two
// has another one on each side and can pass no proof on.
func contactProof(cs *tls.ConnectionState, token, side string) ([]byte, error) {
	bound, err := cs.ExportKeyingMaterial("EXPORTER-fuse-first-contact", nil, sha256.Size)
	if err != nil {
		return nil, fmt.Errorf("export keying material: %w", err)
	}
	mac := hmac.New(sha256.New, []byte(token))
	mac.Write([]byte("fuse first contact 1 " + side + "\x00"))
	mac.Write(bound)
	return mac.Sum(nil), nil
}

// Contact answers first contacts: a caller that proves the token gets the
// host's proof, anybody else nothing. The token itself does not travel.
func Contact(token string) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.TLS == nil {
			http.Error(w, "a first contact needs TLS", http.StatusBadRequest)
			return
		}
		want, err := contactProof(r.TLS, token, "server")
		if err != nil {
			http.Error(w, "no first contact over this connection", http.StatusBadRequest)
			return
		}
		got, err := hex.DecodeString(r.Header.Get(proofHeader))
		if err != nil || !hmac.Equal(got, want) {
			http.Error(w, "unauthorized", http.StatusUnauthorized)
			return
		}
		own, err := contactProof(r.TLS, token, "host")
		if err != nil {
			http.Error(w, "no first contact over this connection", http.StatusBadRequest)
			return
		}
		w.Header().Set(VersionHeader, strconv.Itoa(WireVersion))
		w.Header().Set(proofHeader, hex.EncodeToString(own))
		w.WriteHeader(http.StatusNoContent)
	})
}

// FirstContact meets a host whose certificate is not known yet and returns its
// fingerprint, once the host has proved over that very connection that it has
// the token, which is not sent. It is "" for a host that cannot prove anything
// but shows a certificate that this machine trusts. ErrWrongToken is in the
// error of a host that refuses the proof.
func FirstContact(ctx context.Context, rawURL, token string) (fingerprint string, err error) {
	u, err := url.Parse(rawURL)
	if err != nil || u.Scheme != "https" || u.Host == "" {
		return "", badURL(rawURL)
	}
	addr := u.Host
	if u.Port() == "" {
		addr = net.JoinHostPort(u.Hostname(), "443")
	}
	conf := &tls.Config{
		MinVersion: tls.VersionTLS13, ServerName: u.Hostname(), NextProtos: []string{"http/1.1"},
		InsecureSkipVerify: true, //nolint:gosec // the proof below stands in for names and chains
	}
	raw, err := (&tls.Dialer{Config: conf}).DialContext(ctx, "tcp", addr)
	if err != nil {
		return "", fleet.Wrap(fleet.CodeUnavailable, err, "the host did not answer")
	}
	conn, ok := raw.(*tls.Conn)
	if !ok {
		return "", errors.Join(errors.New("no TLS connection"), raw.Close())
	}
	defer func() { _ = conn.Close() }() // all that mattered has been read
	cs := conn.ConnectionState()
	sum := sha256.Sum256(cs.PeerCertificates[0].Raw)
	fingerprint = hex.EncodeToString(sum[:])
	err = prove(ctx, conn, &cs, u, token)
	var cannot *noContactError
	if errors.As(err, &cannot) && trusted(&cs, u.Hostname()) {
		return "", nil
	}
	if err != nil {
		return "", err
	}
	return fingerprint, nil
}

// noContactError is an answer of somebody who knows no first contacts.
type noContactError struct{ status string }

func (e *noContactError) Error() string { return "a first contact was answered with " + e.status }

func prove(ctx context.Context, conn net.Conn, cs *tls.ConnectionState, u *url.URL, token string) error {
	proof, err := contactProof(cs, token, "server")
	if err != nil {
		return err
	}
	own, err := contactProof(cs, token, "host")
	if err != nil {
		return err
	}
	stop := context.AfterFunc(ctx, func() { _ = conn.SetDeadline(time.Unix(1, 0)) }) // ends a read or write that waits
	defer stop()
	to := *u
	to.Path = strings.TrimRight(u.Path, "/") + ContactPath
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, to.String(), http.NoBody)
	if err != nil {
		return err
	}
	req.Header.Set(proofHeader, hex.EncodeToString(proof))
	req.Header.Set(VersionHeader, strconv.Itoa(WireVersion))
	req.Close = true
	lost := func(err error) error {
		return fleet.Wrap(fleet.CodeUnavailable, errors.Join(context.Cause(ctx), err), "the host did not answer")
	}
	if err := req.Write(conn); err != nil {
		return lost(err)
	}
	resp, err := http.ReadResponse(bufio.NewReaderSize(http.MaxBytesReader(nil, conn, MaxChunk), 4<<10), req)
	if err != nil {
		return lost(err)
	}
	defer func() { _ = resp.Body.Close() }() // nothing in it matters
	switch got, herr := hex.DecodeString(resp.Header.Get(proofHeader)); {
	case resp.StatusCode == http.StatusUnauthorized:
		return fleet.Wrap(fleet.CodeUnavailable, ErrWrongToken, "the host refused the token").
			With(fleet.DetailRemedy, "give the token that fuse hostd was started with")
	case resp.StatusCode == http.StatusNoContent && herr == nil && hmac.Equal(got, own):
		return nil
	case resp.StatusCode == http.StatusNoContent:
		return fleet.Errorf(fleet.CodeUnavailable, "what answers at the host's address does not know its token").
			With(fleet.DetailRemedy, "check the URL; if something stands between server and host, give the certificate's fingerprint as fuse hostd prints it")
	default:
		return fleet.Wrap(fleet.CodeUnavailable, &noContactError{resp.Status}, "what answers at the host's address cannot prove that it has the token").
			With(fleet.DetailRemedy, "check that the URL is that of a fuse hostd, or give the certificate's fingerprint as it prints it")
	}
}

// trusted reports whether this machine trusts the certificate for that name.
func trusted(cs *tls.ConnectionState, name string) bool {
	between := x509.NewCertPool()
	for _, c := range cs.PeerCertificates[1:] {
		between.AddCert(c)
	}
	_, err := cs.PeerCertificates[0].Verify(x509.VerifyOptions{DNSName: name, Intermediates: between})
	return err == nil
}
