package guestd

import (
	"context"
	"crypto/subtle"
	"crypto/tls"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"

	"connectrpc.com/connect"

	"github.com/fusevm/fuse/internal/durable"
	"github.com/fusevm/fuse/internal/guestd/rotated"
	"github.com/fusevm/fuse/internal/guestwire/guestwirev1"
)

// identity is what the machine proves itself by and what its callers have to
// show.
type identity struct {
	vmID  string
	token tokenHash
	// boot is the hash of the token of the boot configuration, which a reboot
	// brings back.
	boot tokenHash
	cert func() (*tls.Certificate, error)
}

// newIdentity is that of a machine whose boot configuration has the token.
func newIdentity(vmID string, token tokenHash, certPEM, keyPEM []byte) *identity {
	return &identity{vmID: vmID, token: token, boot: token, cert: lazyCertificate(certPEM, keyPEM)}
}

// rotated is the identity with another token and certificate.
func (id *identity) rotated(token tokenHash, certPEM, keyPEM []byte) *identity {
	return &identity{vmID: id.vmID, token: token, boot: id.boot, cert: lazyCertificate(certPEM, keyPEM)}
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
	sum := rotated.Hash(token)
	return subtle.ConstantTimeCompare(sum[:], id.token[:]) == 1
}

// Rotate replaces token and certificate: kept first, then counting. What it was
// told before is no reason to refuse it once more. Over a reboot only the hash
// of the token is kept; the host tells the certificate again.
func (s *guestService) Rotate(_ context.Context, req *connect.Request[guestwirev1.RotateRequest]) (*connect.Response[guestwirev1.RotateResponse], error) {
	m := req.Msg
	if m.Token == "" || strings.ContainsAny(m.Token, " \t\r\n") {
		return nil, connect.NewError(connect.CodeInvalidArgument, errors.New("the new token is empty or has white space"))
	}
	s.rotating.Lock()
	defer s.rotating.Unlock()
	now := s.id.Load()
	next := now.rotated(rotated.Hash(m.Token), m.Cert, m.Key)
	if _, err := next.cert(); err != nil {
		return nil, connect.NewError(connect.CodeInvalidArgument, errors.New("the new certificate and its key cannot be used together"))
	}
	err := rotated.Write(s.cfg.EtcDir, now.boot, m.Token)
	if err == nil {
		err = s.showCredentials(m.Token, m.Cert, m.Key)
	}
	if err != nil {
		return nil, connect.NewError(connect.CodeInternal, fmt.Errorf("keep the new token: %w", err))
	}
	s.id.Store(next)
	s.cfg.Log.Info("token and certificate rotated")
	return connect.NewResponse(&guestwirev1.RotateResponse{}), nil
}

// showCredentials puts the credentials where the existing guest agent keeps
// them, in memory.
func (s *Server) showCredentials(token string, cert, key []byte) error {
	if err := os.MkdirAll(filepath.Join(s.cfg.FuseDir, "tls"), 0o700); err != nil {
		return err
	}
	return errors.Join(
		durable.WriteFile(filepath.Join(s.cfg.FuseDir, "auth-token"), []byte(token)),
		durable.WriteFile(filepath.Join(s.cfg.FuseDir, "tls/cert.pem"), cert),
		durable.WriteFile(filepath.Join(s.cfg.FuseDir, "tls/key.pem"), key),
	)
}
