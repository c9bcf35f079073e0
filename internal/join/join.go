package join

import (
	"context"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"time"

	"github.com/fusevm/fuse/internal/fleet"
	"github.com/fusevm/fuse/internal/hostwire/joinwire"
	"github.com/fusevm/fuse/internal/state"
)

// challengeLife is how long a host may take from the challenge to its proof.
const challengeLife = 2 * time.Minute

// maxNonce bounds what a host sends to be proved over, in bytes.
const maxNonce = 128

// nonces makes nonces that need not be remembered: each says until when it
// counts and for whom, and only this process can have made it.
type nonces struct{ key []byte }

func newNonces() (*nonces, error) {
	key := make([]byte, sha256.Size)
	if _, err := rand.Read(key); err != nil {
		return nil, fmt.Errorf("make a key: %w", err)
	}
	return &nonces{key}, nil
}

const (
	nonceRandom = 16
	nonceHead   = nonceRandom + 8
)

func (n *nonces) make(c joinwire.Challenge, now time.Time) (string, error) {
	head := make([]byte, nonceRandom, nonceHead+sha256.Size)
	if _, err := rand.Read(head); err != nil {
		return "", fmt.Errorf("make a nonce: %w", err)
	}
	head = binary.BigEndian.AppendUint64(head, uint64(now.Add(challengeLife).UnixMilli()))
	return base64.RawURLEncoding.EncodeToString(append(head, n.sign(head, c)...)), nil
}

func (n *nonces) sign(head []byte, c joinwire.Challenge) []byte {
	h := hmac.New(sha256.New, n.key)
	h.Write(head)
	h.Write([]byte(c.TokenID + "\x00" + c.ClientNonce))
	return h.Sum(nil)
}

func (n *nonces) valid(nonce string, c joinwire.Challenge, now time.Time) bool {
	raw, err := base64.RawURLEncoding.DecodeString(nonce)
	if err != nil || len(raw) != nonceHead+sha256.Size || !hmac.Equal(raw[nonceHead:], n.sign(raw[:nonceHead], c)) {
		return false
	}
	return now.UnixMilli() <= int64(binary.BigEndian.Uint64(raw[nonceRandom:nonceHead]))
}

// Challenge gives a host what to prove its token over. It says nothing about
// whether there is such a token.
func (s *Service) Challenge(c joinwire.Challenge) (joinwire.Nonce, error) {
	if err := checkNonces(c.TokenID, c.ClientNonce); err != nil {
		return joinwire.Nonce{}, err
	}
	nonce, err := s.nonces.make(c, time.Now())
	return joinwire.Nonce{ServerNonce: nonce}, err
}

func checkNonces(tokenID, clientNonce string) error {
	if tokenID == "" || clientNonce == "" || len(tokenID) > maxNonce || len(clientNonce) > maxNonce {
		return fleet.Invalid("client_nonce", fmt.Sprintf("a token id and a nonce of 1 to %d bytes each", maxNonce), "use fuse hostd", "or token_id is empty or too long")
	}
	return nil
}

// Join takes in a host that proves a token, and proves to it that this control
// plane made that token. The same host may try again with the same token.
func (s *Service) Join(ctx context.Context, j joinwire.Join) (joinwire.Joined, error) {
	if err := checkNonces(j.TokenID, j.ClientNonce); err != nil {
		return joinwire.Joined{}, err
	}
	if !s.nonces.valid(j.ServerNonce, joinwire.Challenge{TokenID: j.TokenID, ClientNonce: j.ClientNonce}, time.Now()) {
		return joinwire.Joined{}, fleet.Errorf(fleet.CodeUnavailable, "the challenge of this join is over, or another server gave it").
			With(fleet.DetailRemedy, "try again")
	}
	token, v := s.token(j.TokenID)
	if ok := v.Check(j.Of(), j.Proof); !ok || token == nil {
		s.refused(ctx, j.TokenID, "no valid proof")
		return joinwire.Joined{}, fleet.Errorf(fleet.CodeUnauthorized, "the join token is not valid").
			With(fleet.DetailRemedy, "make one with 'fuse host join-token'")
	}
	// From here on who asks is known to hold the token, and is told more.
	var host joinwire.Host
	if err := json.Unmarshal(j.Document, &host); err != nil || host.ID == "" || host.RegistryID == "" {
		return joinwire.Joined{}, fleet.Invalid("document", "what fuse hostd sends", "use fuse hostd", "cannot be read")
	}
	secret, err := v.Open(j.ClientNonce, j.ServerNonce, host.SealedToken)
	if err != nil {
		return joinwire.Joined{}, fleet.Invalid("document", "what fuse hostd sends", "use fuse hostd", "has a token that cannot be read")
	}
	warnings, err := s.admit(ctx, *token, host, secret)
	if err != nil {
		return joinwire.Joined{}, err
	}
	answer, err := json.Marshal(joinwire.Answer{HostID: host.ID, Warnings: warnings})
	if err != nil {
		return joinwire.Joined{}, err
	}
	s.log.Info("host joined", slog.String("host_id", host.ID), slog.String("join_token", token.ID))
	return joinwire.Joined{Answer: answer, Proof: v.Answer(j.Of(), answer)}, nil
}

func (s *Service) token(id string) (found *fleet.JoinToken, v joinwire.Verifier) {
	v = s.nobody
	// The closure never fails; without the store there is no token.
	_ = s.store.View(func(tx *state.ReadTx) error {
		if t, ok := get(tx, id); ok {
			found, v = t, joinwire.Verifier{StoredKey: t.StoredKey, ServerKey: t.ServerKey}
		}
		return nil
	})
	return found, v
}

// admit counts the use, durably, and registers the host. A use whose host could
// not be registered is given back.
func (s *Service) admit(ctx context.Context, t fleet.JoinToken, host joinwire.Host, secret string) ([]string, error) {
	if t.HostID != "" && t.HostID != host.ID {
		return nil, fleet.Errorf(fleet.CodeConflict, "this join token is for host %s, not for %.80q", t.HostID, host.ID).
			With(fleet.DetailRemedy, "start fuse hostd with --host-id "+t.HostID)
	}
	fresh, err := s.use(ctx, t.ID, host)
	if err != nil {
		return nil, err
	}
	labels := maps.Clone(host.Labels)
	if labels == nil {
		labels = map[string]string{}
	}
	maps.Copy(labels, t.Labels)
	region := t.Region
	if region == "" {
		region = host.Region
	}
	warnings, err := s.register(ctx, Registration{
		ID: host.ID, Owner: t.Owner, Actor: t.CreatedBy, Evidence: "join token " + t.ID, URL: host.URL, Token: secret, CertSHA256: host.CertSHA256,
		Region: region, Labels: labels,
	})
	if err != nil && fresh {
		if back := s.giveBack(context.WithoutCancel(ctx), t.ID, host); back != nil {
			s.log.Warn("use of a join token not given back", slog.String("join_token", t.ID), slog.Any("error", back))
		}
	}
	return warnings, err
}

func (s *Service) use(ctx context.Context, id string, host joinwire.Host) (fresh bool, err error) {
	_, err = s.store.Update(ctx, func(tx *state.Tx) error {
		t, ok := get(tx, id)
		if !ok {
			return fleet.Errorf(fleet.CodeUnauthorized, "the join token is not valid")
		}
		fresh = !slices.ContainsFunc(t.Uses, func(u fleet.JoinUse) bool { return u.HostID == host.ID && u.RegistryID == host.RegistryID })
		if !fresh && tx.Now().Before(t.ExpiresAt) {
			return nil
		}
		if why := over(t, tx.Now()); why != "" {
			return fleet.Errorf(fleet.CodeUnauthorized, "the join token %s", why).
				With(fleet.DetailReason, "join_token_over").With(fleet.DetailRemedy, "make another with 'fuse host join-token'")
		}
		row := *t
		row.Uses = append(slices.Clone(t.Uses), fleet.JoinUse{HostID: host.ID, RegistryID: host.RegistryID, At: tx.Now()})
		return put(tx, &row)
	})
	if err != nil && fleet.CodeOf(err) == fleet.CodeUnauthorized {
		s.refused(ctx, id, err.Error())
	}
	return fresh, err
}

func (s *Service) giveBack(ctx context.Context, id string, host joinwire.Host) error {
	_, err := s.store.Update(ctx, func(tx *state.Tx) error {
		t, ok := get(tx, id)
		if h, there := tx.Hosts().Get(host.ID); !ok || there && h.Facts.RegistryID == host.RegistryID {
			return nil // another try of the same host has made it: it is used
		}
		row := *t
		row.Uses = slices.DeleteFunc(slices.Clone(t.Uses), func(u fleet.JoinUse) bool { return u.HostID == host.ID && u.RegistryID == host.RegistryID })
		return put(tx, &row)
	})
	return err
}

// refused tells of a join that was refused, so often and no more: anybody can
// ask.
func (s *Service) refused(ctx context.Context, tokenID, why string) {
	if !s.refusals.Allow() {
		return
	}
	shown := fmt.Sprintf("%.40q", tokenID)
	s.log.Warn("join refused", slog.String("join_token", shown), slog.String("reason", why))
	_, err := s.store.Update(ctx, func(tx *state.Tx) error {
		tx.Emit(event(shown, fleet.EventJoinRefused, fleet.Reason{Actor: fleet.ActorHost, Rule: fleet.RuleRefused, Evidence: why}))
		return nil
	})
	if err != nil && !errors.Is(err, context.Canceled) {
		s.log.Warn("event of a refused join not stored", slog.Any("error", err))
	}
}
