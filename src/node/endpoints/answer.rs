//! What a peer is told, in the form it understands.

use super::request::Form;
use crate::cni::event::{Failure, code};
use crate::http::server::Response;
use crate::node::event::Answer;

/// Renders an answer.
pub(super) fn respond(answer: Answer, form: Form) -> Response {
    match (answer, form) {
        (Answer::Done, Form::Istio) => Response::text(200, ""),
        (Answer::Done, Form::Ours) => Response::json(200, "{}"),
        (Answer::Decided(answer), _) => json(200, &answer),
        (Answer::Failed(failure), Form::Istio) => Response::text(500, failure.message),
        (Answer::Failed(failure), Form::Ours) => json(500, &failure),
        (Answer::NotReady(reasons), Form::Istio) => Response::text(503, reasons.join("\n")),
        (Answer::NotReady(reasons), Form::Ours) => {
            let mut reasons = reasons.into_iter();
            let message = reasons.next().unwrap_or_default();
            let details = reasons.collect::<Vec<_>>().join("\n");
            json(503, &Failure { code: code::TRY_AGAIN_LATER, message, details })
        }
        (Answer::Json(text), _) => Response::json(200, text),
    }
}

fn json(status: u16, value: &impl serde::Serialize) -> Response {
    Response::json(status, serde_json::to_vec(value).unwrap_or_default())
}
