package guestd

import (
	"context"
	"crypto/sha256"
	"crypto/subtle"
	"crypto/tls"
	"errors"
	"fmt"
	"strings"
	"sync"

	"connectrpc.com/connect"

	"github.com/fusevm/fuse/internal/guestd/rotated"
	"github.com/fusevm/fuse/internal/guestwire/guestwirev1"
)

// identity is what the machine proves itself by and what its callers have to
// show.
type identity struct {
	token [sha256.Size]byte
	cert  func() (*tls.Certificate, error)
}

func newIdentity(token string, certPEM, keyPEM []byte) *identity {
	return &identity{token: sha256.Sum256([]byte(token)), cert: lazyCertificate(certPEM, keyPEM)}
}

// lazyCertificate reads the certificate when it is first asked for: under
// emulation that costs a tenth of a second, which the boot need not wait for.
func lazyCertificate(certPEM, keyPEM []byte) func() (*tls.Certificate, error) {
	return sync.OnceValues(func() (*tls.Certificate, error) {
		cert, err := tls.X509KeyPair(certPEM, keyPEM)
		if err != nil {
			return nil, fmt.Errorf("guest agent: certificate of the published port: %w", err)
		}
		return &cert, nil
	})
}

// knows reports whether a bearer token is the machine's.
func (id *identity) knows(token string) bool {
	sum := sha256.Sum256([]byte(token))
	return subtle.ConstantTimeCompare(sum[:], id.token[:]) == 1
}

// Rotate replaces token and certificate: kept first, then counting. What it was
// told before is no reason to refuse it once more.
func (s *guestService) Rotate(_ context.Context, req *connect.Request[guestwirev1.RotateRequest]) (*connect.Response[guestwirev1.RotateResponse], error) {
	m := req.Msg
	if m.Token == "" || strings.ContainsAny(m.Token, " \t\r\n") {
		return nil, connect.NewError(connect.CodeInvalidArgument, errors.New("the new token is empty or has white space"))
	}
	next := newIdentity(m.Token, m.Cert, m.Key)
	if _, err := next.cert(); err != nil {
		return nil, connect.NewError(connect.CodeInvalidArgument, errors.New("the new certificate and its key cannot be used together"))
	}
	s.rotating.Lock()
	defer s.rotating.Unlock()
	if err := rotated.Write(s.cfg.FuseDir, rotated.Identity{Boot: s.cfg.BootMark, Token: m.Token, Cert: string(m.Cert), Key: string(m.Key)}); err != nil {
		return nil, connect.NewError(connect.CodeInternal, fmt.Errorf("keep the new token: %w", err))
	}
	s.id.Store(next)
	s.cfg.Log.Info("token and certificate rotated")
	return connect.NewResponse(&guestwirev1.RotateResponse{}), nil
}
