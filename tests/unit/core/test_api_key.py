"""Keys: which role includes which, and until when one is valid."""

from ncclt.core.api_key import PREFIX, ApiKey, Role, hash_secret, new_secret

ROLES = ["env", "read", "tune", "approve", "admin"]


def test_a_role_may_do_what_those_before_it_may_and_no_more(subtests):
    for number in range(len(ROLES)):
        with subtests.test(number=number):
            assert [str(role) for role in Role if Role(ROLES[number]).includes(role)] == ROLES[: number + 1]


def test_a_key_is_valid_until_it_expires_or_is_revoked(subtests):
    for expires, revoked, why in [
        ("", "", ""),
        ("2026-11-23T10:00:01+00:00", "", ""),
        ("2026-11-23T10:00:00+00:00", "", "the key k has expired"),
        ("2026-11-23T09:59:59+00:00", "", "the key k has expired"),
        ("2026-11-24T10:00:00+00:00", "2026-11-20T10:00:00+00:00", "the key k was revoked"),
    ]:
        with subtests.test(expires=expires, revoked=revoked, why=why):
            key = ApiKey(id="k", role=Role.READ, expires=expires, revoked=revoked)
            assert key.invalid("2026-11-23T10:00:00+00:00") == why


def test_a_person_whom_a_proxy_signed_in_is_no_key():
    person, key = ApiKey(id="user ann", role=Role.READ), ApiKey(id="user-1", role=Role.READ)
    assert (person.is_user, person.holder) == (True, "user ann")
    assert (key.is_user, key.holder) == (False, "key user-1")


def test_a_secret_has_32_random_bytes_and_only_its_digest_is_comparable():
    one, other = new_secret(), new_secret()
    assert one != other
    assert one.startswith(PREFIX)
    assert len(one) - len(PREFIX) >= 43  # 32 bytes in base 64, without padding
    assert hash_secret(one) == hash_secret(one) != hash_secret(other)
    assert one not in hash_secret(one)
