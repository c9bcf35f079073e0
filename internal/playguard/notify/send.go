package notify

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"strings"
	"time"
	"unicode"

	gomail "github.com/wneessen/go-mail"

	"github.com/fusevm/fuse/internal/fleet"
	"github.com/fusevm/fuse/internal/uid"
)

// body is a message as a webhook gets it.
type body struct {
	Type    string    `json:"type"` // notification.problem, .recovery, .notice or .digest
	ID      string    `json:"id"`
	Event   string    `json:"event,omitempty"`
	Subject string    `json:"subject,omitempty"`
	Title   string    `json:"title"`
	Text    string    `json:"text"`
	Held    int       `json:"held,omitempty"`
	At      time.Time `json:"timestamp"`
}

// send tries a message once.
func (s *Service) send(ctx context.Context, r Route, m Message) error {
	ctx, cancel := context.WithTimeout(ctx, SendTime)
	defer cancel()
	if r.Channel == ChannelEmail {
		return s.mail(ctx, r, m)
	}
	raw, err := s.Sealer.Open(SealKindTarget, r.ID, r.TargetSealed)
	if err != nil {
		return fmt.Errorf("open the target of route %s: %w", r.Name, err)
	}
	var t target
	if err := json.Unmarshal(raw, &t); err != nil {
		return fmt.Errorf("read the target of route %s: %w", r.Name, err)
	}
	b, err := json.Marshal(body{"notification." + string(m.Sort), m.ID, m.Type, m.Subject, m.Title, m.Text, m.Held, m.At})
	if err != nil {
		return fmt.Errorf("encode a notification: %w", err)
	}
	return s.Poster.Post(ctx, t.URL, m.ID, t.Secret, b)
}

// mail sends a message by SMTP. The text of an error names no password: the
// library is told it, the server may not repeat it.
func (s *Service) mail(ctx context.Context, r Route, m Message) error {
	conf, err := s.Mail()
	if err != nil {
		return err
	}
	msg := gomail.NewMsg()
	if err := msg.From(conf.From); err != nil {
		return fmt.Errorf("the sender: %w", err)
	}
	if err := msg.To(r.To...); err != nil {
		return fmt.Errorf("the receivers: %w", err)
	}
	msg.Subject(line("[fuse] " + m.Title))
	msg.SetMessageIDWithValue(m.ID + "@" + domain(conf.From))
	msg.SetDateWithValue(m.At)
	msg.SetGenHeader("Auto-Submitted", "auto-generated")
	msg.SetBodyString(gomail.TypeTextPlain, text(r, m))
	client, password, err := s.client(conf)
	if err != nil {
		return err
	}
	if err := client.DialAndSendWithContext(ctx, msg); err != nil {
		said := line(without(err.Error(), conf.User, password))
		return fleet.Errorf(fleet.CodeUnavailable, "%s", said[:min(len(said), 300)])
	}
	return nil
}

// without takes a password out of what a server said, also in the forms in which
// it is sent.
func without(said, user, password string) string {
	if password == "" {
		return said
	}
	for _, sent := range []string{"\x00" + user + "\x00" + password, password} {
		said = strings.ReplaceAll(said, base64.StdEncoding.EncodeToString([]byte(sent)), "…")
	}
	return strings.ReplaceAll(said, password, "…")
}

func (s *Service) client(conf Mail) (*gomail.Client, string, error) {
	trust := &tls.Config{ServerName: conf.Host, MinVersion: tls.VersionTLS12}
	if conf.CA != "" {
		trust.RootCAs = x509.NewCertPool()
		trust.RootCAs.AppendCertsFromPEM([]byte(conf.CA))
	}
	options := []gomail.Option{gomail.WithPort(conf.Port), gomail.WithTimeout(SendTime), gomail.WithTLSConfig(trust)}
	switch conf.TLS {
	case ImplicitTLS:
		options = append(options, gomail.WithSSL())
	case NoTLS:
		options = append(options, gomail.WithTLSPolicy(gomail.NoTLS))
	default:
		options = append(options, gomail.WithTLSPolicy(gomail.TLSMandatory))
	}
	password := ""
	if conf.User != "" {
		if conf.PasswordSealed != nil {
			raw, err := s.Sealer.Open(SealKindMail, mailID, conf.PasswordSealed)
			if err != nil {
				return nil, "", fmt.Errorf("open the password for mail: %w", err)
			}
			password = string(raw)
		}
		options = append(options, gomail.WithSMTPAuth(gomail.SMTPAuthAutoDiscover), gomail.WithUsername(conf.User), gomail.WithPassword(password))
	}
	client, err := gomail.NewClient(conf.Host, options...)
	if err != nil {
		return nil, "", fmt.Errorf("mail server %s: %w", conf.Host, err)
	}
	return client, password, nil
}

func domain(address string) string {
	_, d, ok := strings.Cut(address, "@")
	if !ok {
		return "localhost"
	}
	return d
}

// line is a text in one line that a terminal and a header can take.
func line(s string) string {
	return strings.Map(func(r rune) rune {
		if unicode.IsPrint(r) {
			return r
		}
		return ' '
	}, strings.ToValidUTF8(strings.TrimSpace(s), ""))
}

func text(r Route, m Message) string {
	var b strings.Builder
	b.WriteString(m.Text + "\n\n")
	if m.Subject != "" {
		fmt.Fprintf(&b, "about: %s\n", m.Subject)
	}
	if m.Type != "" {
		fmt.Fprintf(&b, "event: %s\n", m.Type)
	}
	fmt.Fprintf(&b, "at: %s\nroute: %s (%s)\n", m.At.UTC().Format(time.RFC3339), r.Name, r.Scope)
	return b.String()
}

// Test sends one message now. What became of it is the route's Error.
func (s *Service) Test(ctx context.Context, id string) (Told, error) {
	told, err := s.Get(ctx, id)
	if err != nil {
		return told, err
	}
	r, err := s.route(told.ID)
	if err != nil {
		return told, err
	}
	now := time.Now().UTC()
	if err := s.tests.take(r.Owner, now); err != nil {
		return told, err
	}
	err = s.try(ctx, r, Message{
		ID: strings.ToLower(uid.New()), Route: r.ID, Sort: Notice, Type: "test", Title: "a test of route " + r.Name,
		Text: "This is a test. Who gets it is told of what happens on this route.", At: now,
	})
	told.Error = ""
	if err != nil {
		told.Error = err.Error()
	}
	return told, nil
}
