//! The environment and the profile files that all programs of S3 share: `~/.aws/credentials` and `~/.aws/config`.
//!
//! Source: "Configuration and credential file settings", "Service-specific endpoints" and "Environment variables" of the AWS SDKs and Tools
//! Reference Guide.

use std::collections::BTreeMap;
use std::path::PathBuf;

/// Variables that name files.
const FILES: [&str; 5] = [
    "AWS_CA_BUNDLE",
    "AWS_CONFIG_FILE",
    "AWS_SHARED_CREDENTIALS_FILE",
    "AWS_WEB_IDENTITY_TOKEN_FILE",
    "AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE",
];

/// Variables of the environment, as they were when they were taken, and the profile that was asked for beside them.
#[derive(Clone, Default)]
pub struct Environment {
    variables: BTreeMap<String, String>,
    profile: Option<String>,
}

// Some variables are secret: none is shown.
impl std::fmt::Debug for Environment {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Environment({} variables)", self.variables.len())
    }
}

impl Environment {
    /// Those of this process that concern S3. Files are named by absolute paths: a server may leave the directory where it was started.
    pub fn of_process() -> Environment {
        let ours = |name: &str| name.starts_with("AWS_") || name == "HOME";
        let mut variables: BTreeMap<String, String> = std::env::vars_os()
            .filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)))
            .filter(|(name, _)| ours(name))
            .collect();
        for name in FILES {
            if let Some(value) = variables.get_mut(name)
                && let Ok(path) = std::path::absolute(&*value)
                && let Ok(path) = path.into_os_string().into_string()
            {
                *value = path;
            }
        }
        Environment { variables, profile: None }
    }

    /// These.
    pub fn of<'a>(pairs: impl IntoIterator<Item = (&'a str, &'a str)>) -> Environment {
        let own = |(name, value): (&str, &str)| (name.to_owned(), value.to_owned());
        Environment { variables: pairs.into_iter().map(own).collect(), profile: None }
    }

    /// As this, but for one variable.
    pub fn with(mut self, name: &str, value: &str) -> Environment {
        self.variables.insert(name.to_owned(), value.to_owned());
        self
    }

    /// As this, with a profile that was asked for: its keys come before those in variables, and it must be there.
    pub fn with_profile(self, name: &str) -> Environment {
        Environment { profile: Some(name.to_owned()), ..self }
    }

    /// The profile that was asked for, beside the variables.
    pub fn asked_profile(&self) -> Option<&str> {
        self.profile.as_deref()
    }

    /// The profile that was named, by whatever.
    pub fn named_profile(&self) -> Option<&str> {
        self.asked_profile().or_else(|| self.get("AWS_PROFILE"))
    }

    /// The value of a variable that is set and not empty.
    pub fn get(&self, name: &str) -> Option<&str> {
        self.variables.get(name).map(String::as_str).filter(|value| !value.is_empty())
    }

    /// The path of a file in `~/.aws`, or the one that a variable names.
    fn file(&self, variable: &str, name: &str) -> Option<PathBuf> {
        match self.get(variable) {
            Some(path) => Some(path.into()),
            None => Some(PathBuf::from(self.get("HOME")?).join(".aws").join(name)),
        }
    }
}

/// The settings of one profile. Of a setting of several lines those are called by both names, with a dot: `s3.endpoint_url`.
pub type Profile = BTreeMap<String, String>;

/// The profiles of both files. A setting that is in both is taken from the credentials file.
#[derive(Default)]
pub struct Profiles {
    profiles: BTreeMap<String, Profile>,
    /// Sections `services NAME`, which profiles name.
    services: BTreeMap<String, Profile>,
}

impl Profiles {
    /// Those of the files that the environment leads to. A file that is not there is empty; one that cannot be read is an error.
    pub fn load(environment: &Environment) -> Result<Profiles, String> {
        let mut profiles = Profiles::default();
        let files = [
            (environment.file("AWS_CONFIG_FILE", "config"), true),
            (environment.file("AWS_SHARED_CREDENTIALS_FILE", "credentials"), false),
        ];
        for (path, config) in files {
            let Some(path) = path else { continue };
            match std::fs::read_to_string(&path) {
                Ok(text) => profiles.add(&text, config),
                Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
                Err(error) => return Err(format!("{}: {error}", path.display())),
            }
        }
        Ok(profiles)
    }

    /// A profile by its name.
    pub fn get(&self, name: &str) -> Option<&Profile> {
        self.profiles.get(name)
    }

    /// Where a profile says that S3 is: what it says of this service comes before what it says of all.
    pub fn endpoint<'a>(&'a self, profile: &'a Profile) -> Option<&'a str> {
        let services = profile.get("services").and_then(|name| self.services.get(name));
        let of_s3 = services.and_then(|section| section.get("s3.endpoint_url"));
        of_s3.or_else(|| profile.get("endpoint_url")).map(String::as_str)
    }

    /// Adds the profiles of a file. In `config`, sections of other profiles than `default` are called `profile NAME`.
    fn add(&mut self, text: &str, config: bool) {
        let (mut section, mut group) = (None, None);
        for line in text.lines() {
            let indented = line.starts_with([' ', '\t']);
            let line = line.trim();
            if line.starts_with(['#', ';']) {
                continue;
            }
            if let Some(name) = line.strip_prefix('[').and_then(|rest| rest.split(']').next()) {
                let name = name.trim();
                let known = match (name.strip_prefix("profile "), name.strip_prefix("services ")) {
                    (Some(name), _) if config => Some((&mut self.profiles, name.trim())),
                    (_, Some(name)) if config => Some((&mut self.services, name.trim())),
                    _ if config && name != "default" => None,
                    _ => Some((&mut self.profiles, name)),
                };
                section = known.map(|(sections, name)| sections.entry(name.to_owned()).or_default());
                group = None;
                continue;
            }
            let (Some(section), Some((name, value))) = (&mut section, line.split_once('=')) else { continue };
            let name = name.trim().to_ascii_lowercase();
            // A comment begins with a space and a number sign.
            let value = value.split(" #").next().unwrap_or_default().trim();
            let name = match (indented, &group) {
                (true, Some(group)) => format!("{group}.{name}"),
                (true, None) => continue,
                (false, _) => name,
            };
            if !indented {
                group = value.is_empty().then(|| name.clone());
            }
            if !value.is_empty() {
                section.insert(name, value.to_owned());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_files_make_the_profiles() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(
            folder.path().join("config"),
            "[default]\nregion = eu-west-1 # here\n[profile other]\nregion=us-west-2\ns3 =\n  addressing_style = path\n\
             aws_access_key_id = loses\n[plain]\nregion = nowhere\n",
        )
        .unwrap();
        std::fs::write(
            folder.path().join("credentials"),
            "# ours\n[default]\naws_access_key_id = id\naws_secret_access_key = a=b/c+\n\n[other]\nAWS_ACCESS_KEY_ID = wins\n",
        )
        .unwrap();
        let at = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
        let environment = Environment::of([
            ("AWS_CONFIG_FILE", at("config").as_str()),
            ("AWS_SHARED_CREDENTIALS_FILE", at("credentials").as_str()),
        ]);
        let profiles = Profiles::load(&environment).unwrap();
        let default = profiles.get("default").unwrap();
        assert_eq!(
            (default["region"].as_str(), default["aws_secret_access_key"].as_str()),
            ("eu-west-1", "a=b/c+")
        );
        let other = profiles.get("other").unwrap();
        assert_eq!((other["region"].as_str(), other["aws_access_key_id"].as_str()), ("us-west-2", "wins"));
        assert!(profiles.get("plain").is_none(), "not a profile's section");
    }

    #[test]
    fn services_have_endpoints_of_their_own() {
        let mut profiles = Profiles::default();
        let text = "[profile a]\nservices = here\nendpoint_url = http://all\n[profile b]\nservices=gone\nendpoint_url=http://all\n\
                    [services here]\ndynamodb =\n  endpoint_url = http://tables\ns3 =\n  # ours\n  endpoint_url = http://s3 # really\n\
                    [services other]\ns3 =\n  endpoint_url = http://no\n[profile c]\ns3 =\n  endpoint_url = http://no\n";
        profiles.add(text, true);
        let endpoint = |name: &str| profiles.endpoint(profiles.get(name).unwrap());
        assert_eq!((endpoint("a"), endpoint("b")), (Some("http://s3"), Some("http://all")));
        assert_eq!(endpoint("c"), None, "only a section of services may say it so");
        assert!(profiles.get("here").is_none());
    }

    #[test]
    fn no_files_are_no_profiles() {
        let profiles = Profiles::load(&Environment::of([("HOME", "/nonexistent")])).unwrap();
        assert!(profiles.get("default").is_none());
    }
}
